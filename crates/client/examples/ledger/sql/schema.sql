CREATE TABLE account (
    name       text   PRIMARY KEY,
    balance    bigint NOT NULL,
    writer     text   NOT NULL,
    last_token bigint NOT NULL
);
INSERT INTO account VALUES ('cash', 100, 'nobody', 0);
