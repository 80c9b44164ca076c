"""What a run leaves behind: its record, its tables, its summary and its folder."""
