//! Connections of clients to a server with one bit per node.

use core::time::Duration;
use std::sync::Arc;

use mitra_failover::{Config, Domain, Secret, VirtualQp};
use mitra_filter::rpc::{ClientConfig, RpcClient, RpcError, RpcServer, VqpCarrier, VqpConnection};
use mitra_filter::{BitFilter, BitSender, Outcome};
use mitra_sim::Testbed;
use mitra_verbs::Provider;

const MAX_MESSAGE: usize = 512;

type Client = RpcClient<VqpCarrier, BitSender<Vec<u8>>>;
type Server = RpcServer<VqpCarrier, BitFilter<Vec<u8>>>;

struct Net {
    testbed: Testbed,
    domains: [Arc<Domain>; 2],
    server: Server,
    connections: u64,
}

impl Net {
    fn new() -> Net {
        let testbed = Testbed::with_config(1, mitra_sim::Config::fault_free(), 2);
        let domains = [0, 1].map(|host: usize| {
            let nics = testbed.nics[host].iter().map(|nic| Arc::clone(nic) as Arc<dyn Provider>);
            Domain::new(nics.collect()).expect("the NICs have the resources of a domain")
        });
        Net { testbed, domains, server: Server::over_vqps(4, MAX_MESSAGE), connections: 0 }
    }

    /// Returns the vQP of the client and the vQP of the server, connected.
    fn vqps(&mut self) -> [VirtualQp; 2] {
        self.connections += 1;
        let mut config = Config {
            send_wrs: 8,
            recv_wrs: 64,
            peer_timeout: Duration::from_millis(200),
            ..Config::default()
        };
        config.detector.heartbeat_interval = Duration::from_millis(1);
        let [mut a, mut b] = [0, 1].map(|host: usize| {
            let secret = Secret::fixed([self.connections * 2 + host as u64, 7]);
            let builder = VirtualQp::builder(&self.domains[host]).config(config).secret(secret);
            builder.build().expect("the NICs have room")
        });
        let infos = [&a, &b].map(|vqp| vqp.local_info());
        a.connect(&infos[1]).expect("the ends agree");
        b.connect(&infos[0]).expect("the ends agree");
        [a, b]
    }

    /// Connects a client to the server by `connect`. Returns the client and the connection at the
    /// server.
    fn client(
        &mut self,
        connect: impl FnOnce(&mut Server, VirtualQp) -> Result<VqpConnection, RpcError>,
    ) -> (Client, VqpConnection) {
        let [a, b] = self.vqps();
        let connection = connect(&mut self.server, b).expect("the server has a free node");
        let config = ClientConfig { max_calls: 4, retry_interval: Duration::from_millis(2) };
        (RpcClient::over_vqp(a, MAX_MESSAGE, config).expect("the vQP has room"), connection)
    }

    /// Drives the server and a client for this time, and returns the outcomes of the client's
    /// calls.
    fn run(&mut self, mut client: Option<&mut Client>, time: Duration) -> Vec<Outcome<Vec<u8>>> {
        let mut ended = Vec::new();
        for _ in 0..time.as_micros() / 25 {
            if let Some(client) = &mut client {
                client.poll(&mut ended).expect("the NICs work");
            }
            let served = self.server.serve(|request, reply| reply.put(request.body).expect("it has room"));
            served.expect("the NICs work");
            self.testbed.world.run_for(Duration::from_micros(25));
        }
        ended.into_iter().map(|(_, outcome)| outcome).collect()
    }
}

fn answered(bytes: &[u8]) -> Vec<Outcome<Vec<u8>>> {
    vec![Outcome::Answered(bytes.to_vec())]
}

/// The first client's connection has ended before the client comes back, and another client has the
/// first client's node.
#[test]
fn client_that_connects_again_does_not_close_the_connection_of_another() {
    let mut net = Net::new();
    let (mut first, connection) = net.client(Server::connect);
    first.call(b"x").expect("the client has room");
    assert_eq!(net.run(Some(&mut first), Duration::from_millis(10)), answered(b"x"));
    drop(first);
    net.run(None, Duration::from_secs(1));

    let (mut other, others) = net.client(Server::connect);
    assert_eq!((others.node(), others == connection), (connection.node(), false));
    other.call(b"y").expect("the client has room");
    let (_returned, again) = net.client(|server, vqp| server.reconnect(connection, vqp));
    assert_ne!(again.node(), others.node());
    assert_eq!(net.run(Some(&mut other), Duration::from_millis(100)), answered(b"y"));
}

/// The connection of the client still stands when the client connects again. The client gets its
/// node again.
#[test]
fn client_that_connects_again_closes_its_earlier_connection() {
    let mut net = Net::new();
    let (mut stopped, connection) = net.client(Server::connect);
    stopped.call(b"x").expect("the client has room");
    let (mut client, again) = net.client(|server, vqp| server.reconnect(connection, vqp));
    assert_eq!((again.node(), again == connection), (connection.node(), false));
    client.call(b"y").expect("the client has room");
    assert_eq!(net.run(Some(&mut client), Duration::from_millis(10)), answered(b"y"));
    assert_eq!(net.server.stats().executed, 1, "the earlier connection executes nothing any more");
}
