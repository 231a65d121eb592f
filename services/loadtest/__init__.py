"""Load and fault schedules against a running pair, and the report."""
