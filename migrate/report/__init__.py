"""Results as text, JSON, SARIF and HTML; nothing here decides anything."""
