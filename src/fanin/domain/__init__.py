"""What a reader must know: states, records, policies, identities, errors and limits. No I/O, no SQL, no clock."""
