"""How families of models write calls. Each file here exposes `PARSER`; its name is the option's name."""
