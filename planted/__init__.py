"""The planted language from inside: its rules, an ideal reader of it, and exact counts. `utils.corpus` is its door."""
