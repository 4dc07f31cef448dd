"""All-reduce schedules as data, and what reads them: execute, verify, cost, draw."""
