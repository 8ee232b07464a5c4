"""Examples that run in the tests."""
