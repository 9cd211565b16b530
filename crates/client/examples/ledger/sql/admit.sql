INSERT INTO fence VALUES ('ledger', :token)
    ON CONFLICT (name) DO UPDATE SET last_token = excluded.last_token
 WHERE fence.last_token <= excluded.last_token;
