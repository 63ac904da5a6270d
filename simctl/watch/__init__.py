"""`simctl watch`: scrapes of running servers, the twin's reports as lines, as a page and as metrics."""
