"""The codemod: read → plan → apply → write."""
