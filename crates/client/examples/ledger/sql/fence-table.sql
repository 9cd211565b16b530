CREATE TABLE fence (
    name       text   PRIMARY KEY,
    last_token bigint NOT NULL
);
