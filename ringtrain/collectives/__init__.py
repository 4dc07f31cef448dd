"""All-reduce schedules as data, and their users: execution, proof, cost and drawing."""
