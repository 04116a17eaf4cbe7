"""Commands that speak the admin API: topics, policies, schemas, delayed messages, memory."""
