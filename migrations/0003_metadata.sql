-- Metadata: small named records by which gateways agree, such as which engine of a chain is active.

CREATE TABLE oncegate_metadata (
    name text COLLATE "C" PRIMARY KEY,
    value bytea NOT NULL CHECK (octet_length(value) <= 4096)
);
