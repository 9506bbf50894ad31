"""What every command needs at run time: processes, files, identities of models, loading, errors and messages."""
