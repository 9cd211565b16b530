use tidelock_client::{Client, Code, Error};

pub async fn count(client: &Client) -> Result<(), Error> {
    let orders = client.counter("orders");
    let mine = orders.next_block(100).await?;
    println!("these numbers are nobody else's: {mine:?}");
    let now = orders.add(1).await?;
    orders.compare_and_set(now, 0).await?;
    let refused = orders.compare_and_set(now, 7).await;
    assert_eq!(refused.err().and_then(|error| error.code()), Some(Code::Mismatch));
    Ok(())
}
