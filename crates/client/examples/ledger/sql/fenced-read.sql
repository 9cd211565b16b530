UPDATE account SET last_token = :token
 WHERE name = 'cash' AND last_token <= :token
RETURNING balance;
