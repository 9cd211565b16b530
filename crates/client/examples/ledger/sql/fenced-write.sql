UPDATE account SET balance = :balance, writer = :'who', last_token = :token
 WHERE name = 'cash' AND last_token <= :token;
