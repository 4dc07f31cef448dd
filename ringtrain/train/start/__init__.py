"""From flags to a run that starts, resumes or recovers."""
