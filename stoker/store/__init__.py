"""The database: schema, migrations, the one writer, and every query by its name. Knows no HTTP and no money rules."""
