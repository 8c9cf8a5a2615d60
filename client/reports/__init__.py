"""What came of the runs, for people and for programs: one file for each form."""
