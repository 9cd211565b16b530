UPDATE account SET balance = :balance, writer = :'who'
 WHERE name = 'cash' AND last_token <= :token;
