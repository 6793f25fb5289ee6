//! Programs on two hosts (network namespaces) with two links between them, one of which goes down
//! during the run.

/// A shell script that sets up two hosts and two links. This host has 10.0.0.1 and 10.1.0.1, the
/// other host 10.0.0.2 and 10.1.0.2.
const HOSTS: &str = r#"
set -eu
unshare --net sleep 600 & other=$!
until [ "$(readlink /proc/$other/ns/net)" != "$(readlink /proc/$$/ns/net)" ]; do sleep 0.01; done
there() { nsenter --target $other --net "$@"; }
for rail in 0 1; do
    ip link add here$rail type veth peer name there$rail netns $other
    ip address add 10.$rail.0.1/24 dev here$rail
    there ip address add 10.$rail.0.2/24 dev there$rail
    ip link set here$rail up
    there ip link set there$rail up
done
until [ "$(ip -oneline link | grep -c 'here.*LOWER_UP')" = 2 ]; do sleep 0.01; done
listens() { until ss --listening --tcp --numeric | grep -q ":$1 "; do sleep 0.05; done; }
ends() { wait $server || { echo "server: $?"; exit 1; }; wait $client || { echo "client: $?"; exit 1; }; }
"#;

/// Runs a script on the two hosts, and returns its output.
fn run_script(script: &str) -> String {
    let dir = tempfile::tempdir().expect("a directory for the outputs");
    let script = format!("{HOSTS}\n{script}\ncat server client");
    let mut hosts = mitra_test_process::command_in_new_namespace();
    hosts.args(["sh", "-c", &script]).env("MITRA", env!("CARGO_BIN_EXE_mitra"));
    let output = mitra_test_process::output(hosts.current_dir(&dir));
    let file = |name| std::fs::read_to_string(dir.path().join(name)).unwrap_or_default();
    assert!(
        output.status.success(),
        "{}: {}{}\n--- server\n{}\n--- client\n{}",
        output.status,
        String::from_utf8_lossy(&output.stdout),
        String::from_utf8_lossy(&output.stderr),
        file("server"),
        file("client"),
    );
    String::from_utf8(output.stdout).expect("the output is ASCII")
}

/// A user who tries two machines without `--rails ADDRESS` gets NICs on loopback addresses. The
/// output says so.
#[test]
fn two_hosts_hint() {
    run_script(
        r#"
        ip link set lo up; there ip link set lo up
        mkdir -m 700 a b
        here="env XDG_RUNTIME_DIR=$PWD/a $MITRA"
        there="nsenter --target $other --net env XDG_RUNTIME_DIR=$PWD/b $MITRA"
        says() { grep -aq "mitra:.*loopback" server client || { echo "$* says nothing"; cat server client; exit 1; }; }
        for rails in 1 2 3; do
            $here run --rails $rails -- ib_write_bw -n 100 >server 2>&1 & server=$!
            listens 18515
            $there run --rails $rails -- ib_write_bw -n 100 10.0.0.1 >client 2>&1 && exit 1
            kill $server || :; wait $server || :
            says ib_write_bw with $rails rails
        done
        $here run -- rping -s -a 10.0.0.1 -C 3 >server 2>&1 & server=$!
        listens 15366 # the TCP port that stands for rping's port 7174
        $there run -- rping -c -a 10.0.0.1 -C 3 >client 2>&1 || :
        kill $server || :; wait $server || :
        says rping

        : >server; echo secret >secret; chmod 600 secret
        remote="--id 0 --processes 10.0.0.2:7101 --secret secret"
        $there kv serve $remote --clients 10.0.0.2:6401 --memories 10.0.0.1:7001 >client 2>&1 && exit 1
        says mitra kv
        $there elect $remote --memory 10.0.0.1:7001 >client 2>&1 && exit 1
        says mitra elect
        : >client
        $here memory kv --listen 10.0.0.1:7001 --secret secret >server 2>&1 & server=$!
        listens 7001
        until [ -s server ]; do sleep 0.05; done
        kill $server || :; wait $server || :
        says mitra memory
        "#,
    );
}

#[test]
fn rc_pingpong_runs_between_two_hosts() {
    let output = run_script(
        r#"
        "$MITRA" run --rails 10.0.0.1 -- ibv_rc_pingpong -g 0 -c >server 2>&1 & server=$!
        listens 18515
        there "$MITRA" run --rails 10.0.0.2 -- ibv_rc_pingpong -g 0 -c 10.0.0.1 >client 2>&1 & client=$!
        ends
        "#,
    );
    assert_eq!(output.matches("1000 iters").count(), 2, "{output}");
}

#[test]
fn program_on_two_hosts_survives_link_failure() {
    let output = run_script(
        r#"
        "$MITRA" run --rails 10.0.0.1,10.1.0.1 -- ib_write_bw -D 3 >server 2>&1 & server=$!
        listens 18515
        # It speaks with its server over the cable that stays.
        there "$MITRA" run --rails 10.0.0.2,10.1.0.2 -- ib_write_bw -D 3 10.1.0.1 >client 2>&1 & client=$!
        # In mid-run: when the first cable has carried 50 MB.
        until [ "$(awk '/here0:/ { print $2 }' /proc/net/dev)" -gt 50000000 ]; do sleep 0.02; done
        ip link set here0 down
        ends
        "#,
    );
    assert!(
        output.contains("(device event)"),
        "the state of the interface says at once that the link is down: {output}"
    );
    assert_eq!(output.matches("moved from rail 0 to rail 1").count(), 2, "{output}");
}

/// The first link loses every packet from the start, as both hosts send to an unknown station
/// there. The programs connect over the other link.
#[test]
fn program_on_two_hosts_connects_without_rail_0() {
    let output = run_script(
        r#"
        ip neigh replace 10.0.0.2 lladdr 02:00:00:00:00:99 dev here0 nud permanent
        there ip neigh replace 10.0.0.1 lladdr 02:00:00:00:00:99 dev there0 nud permanent
        "$MITRA" run --rails 10.0.0.1,10.1.0.1 -- ib_write_bw -n 500 >server 2>&1 & server=$!
        listens 18515
        there "$MITRA" run --rails 10.0.0.2,10.1.0.2 -- ib_write_bw -n 500 10.1.0.1 >client 2>&1 & client=$!
        ends
        "#,
    );
    assert_eq!(output.matches("moved from rail 0 to rail 1").count(), 2, "{output}");
}
