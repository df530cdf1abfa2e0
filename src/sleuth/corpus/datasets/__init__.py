"""Question sets: public ones by name, the files of other projects as they are, merged into ours."""
