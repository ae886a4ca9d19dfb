-- Notes: small named values that gateways keep for themselves, and agree by; such as which engine of a chain is active.
-- An addition: older gateways do not know the table, and gateways that use one engine a chain need none.

CREATE TABLE oncegate_notes (
    name text COLLATE "C" PRIMARY KEY,
    value bytea NOT NULL CHECK (octet_length(value) <= 4096)
);
