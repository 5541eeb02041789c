"""What the lines of logs say: one file for each speaker, tables of wordings, no state."""
