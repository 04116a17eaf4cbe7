"""What a topic's subscriptions hold back for later."""
