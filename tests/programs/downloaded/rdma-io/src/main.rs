//! The crate `rdma-io` between two processes: a stream of bytes over SENDs, which the other end
//! sends back. The first process starts the second.

use std::env;
use std::error::Error;
use std::io::{BufRead, BufReader};
use std::process::{Command, Stdio};

use rdma_io::async_cm::AsyncCmListener;
use rdma_io::async_stream::AsyncRdmaStream;
use rdma_io::send_recv_transport::SendRecvConfig;
use rdma_io::transport::TransportBuilder;

const ROUNDS: usize = 500;
const BYTES: usize = 16 << 10;

type Result<T> = std::result::Result<T, Box<dyn Error>>;

async fn server() -> Result<()> {
    let listener = AsyncCmListener::bind(&"127.0.0.1:0".parse()?)?;
    println!("{}", listener.local_addr().ok_or("the listener has no address")?);
    let mut stream = AsyncRdmaStream::new(SendRecvConfig::stream().accept(&listener).await?);
    let mut buffer = vec![0; BYTES];
    loop {
        match stream.read(&mut buffer).await? {
            0 => return Ok(()),
            read => stream.write_all(&buffer[..read]).await?,
        }
    }
}

async fn client(address: &str) -> Result<()> {
    let mut stream = AsyncRdmaStream::new(SendRecvConfig::stream().connect(&address.parse()?).await?);
    for round in 0..ROUNDS {
        let sent: Vec<u8> = (0..BYTES).map(|i| (i * 7 + round) as u8).collect();
        stream.write_all(&sent).await?;
        let mut received = vec![0; BYTES];
        let mut len = 0;
        while len < BYTES {
            match stream.read(&mut received[len..]).await? {
                0 => return Err("the stream ends early".into()),
                read => len += read,
            }
        }
        assert!(received == sent, "round {round}: other bytes than were sent");
    }
    stream.shutdown().await?;
    Ok(())
}

#[tokio::main(flavor = "current_thread")]
async fn main() -> Result<()> {
    if env::args().nth(1).is_some() {
        return server().await;
    }
    let mut child = Command::new(env::current_exe()?).arg("server").stdout(Stdio::piped()).spawn()?;
    let mut address = String::new();
    BufReader::new(child.stdout.take().ok_or("no output")?).read_line(&mut address)?;
    client(address.trim()).await?;
    child.kill()?;
    child.wait()?;
    println!("{ROUNDS} messages of {BYTES} bytes came back as they were sent");
    Ok(())
}
