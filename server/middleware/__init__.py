"""What every request passes on its way in, as plain ASGI wrappers."""
