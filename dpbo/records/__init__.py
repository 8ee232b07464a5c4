"""The private records: their view, their form, digests, and checks of likely mistakes."""
