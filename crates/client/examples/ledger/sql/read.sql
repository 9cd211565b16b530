SELECT balance FROM account WHERE name = 'cash';
