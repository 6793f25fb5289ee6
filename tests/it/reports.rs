//! Reports of users as scripts of shell commands with stock programs, each in a network namespace
//! of its own. A script ends with 0 if all is right, and otherwise says what is wrong.

/// The first lines of every script. A wait has no limit of its own, because a test has one.
const BEGIN: &str = r#"
set -u
ip link set lo up
until_true() { until "$@" >/dev/null 2>&1; do sleep 0.05; done; }
listens() { until_true sh -c "ss --listening --tcp --numeric | grep -q ':$1 '"; }
wrong() { echo "WRONG: $*"; tail -n 5 ./*.log; exit 1; }
"#;

/// Runs a script, with `$MITRA` and `mitra` as the program, in an empty directory.
fn run_script(script: &str) {
    let dir = tempfile::tempdir().expect("a directory for the outputs");
    let mitra = std::path::Path::new(env!("CARGO_BIN_EXE_mitra"));
    let path = std::env::var("PATH").unwrap_or_default();
    let mut namespace = mitra_test_process::command_in_new_namespace();
    namespace.args(["bash", "-c", &format!("{BEGIN}\n{script}")]).current_dir(&dir);
    namespace.env("MITRA", mitra).env("XDG_RUNTIME_DIR", dir.path());
    namespace.env("PATH", format!("{}:{path}", mitra.parent().unwrap().display()));
    let output = mitra_test_process::output(&mut namespace);
    let text = |bytes| String::from_utf8_lossy(bytes).into_owned();
    assert!(output.status.success(), "{}\n{}{}", output.status, text(&output.stdout), text(&output.stderr));
}

/// Three memories: 0 is down while `colour` is written and acknowledged by 1 and 2; everything
/// stops; a file of memory 1 is lost; 0 and 1 start again. Memory 1 refuses to start, so there is
/// no majority, and no answer.
#[test]
fn memory_region_missing() {
    for loss in ["rm", "truncate -s 0"] {
        run_script(&format!(
            r#"
            memories=127.0.0.1:7000,127.0.0.1:7001,127.0.0.1:7002
            memory() {{ mitra memory kv --processes 1 --listen 127.0.0.1:700$1 --data data/$1 >>memory$1.log 2>&1 & pids="$pids $!"; }}
            store() {{
                mitra kv serve --id 0 --processes 127.0.0.1:7101 --clients 127.0.0.1:6401 --memories $memories >>store.log 2>&1 &
                pids="$pids $!"
            }}
            stop() {{ kill $pids; wait $pids; pids=; }}
            put() {{ mitra kv put --timeout 100 --servers 127.0.0.1:6401 "$@" || wrong "no change"; }}
            pids=; mkdir data
            memory 0; memory 1; memory 2; store; put first 1; stop
            memory 1; memory 2; store; put colour blue; stop
            {loss} data/1/region-0
            memory 1; wait $!; [ $? = 2 ] || wrong "memory 1 starts without its region"
            grep -q "region-0: missing, shorter" memory1.log || wrong "memory 1 does not say why"
            pids=; memory 0; store
            mitra kv get --timeout 2 --servers 127.0.0.1:6401 colour; [ $? = 3 ] || wrong "one memory of three answers"
            stop
            "#
        ));
    }
}

/// The blocks of commands of docs/consensus.md, pasted into one shell one after the other. In place
/// of `sleep 2`, the test waits until each process has printed a leader, and it repeats `redis-cli`
/// until the process has started.
#[test]
fn docs_consensus() {
    let page = include_str!("../../docs/consensus.md");
    let blocks = page.split("```sh\n").skip(1).map(|rest| rest.split("```").next().unwrap_or(rest));
    let pasted = blocks.collect::<String>();
    let begun =
        ["mitra propose ", "mitra elect ", "mitra kv serve "].map(|part| pasted.matches(part).count());
    assert_eq!(begun, [1, 1, 1], "{pasted}");
    run_script(&format!(
        r#"
        cat >pasted.sh <<'END'
sleep() {{ until [ "$(grep -c '^process [0-2]: process' out.log)" -ge 3 ]; do command sleep 0.05; done; }}
redis-cli() {{ until command redis-cli "$@" | grep -x blue; do command sleep 0.05; done; }}
{pasted}
END
        bash pasted.sh >out.log 2>err.log
        grep -qx "process 1: decided blue" out.log || wrong "propose does not decide blue"
        grep -qx blue out.log || wrong "redis-cli does not print blue"
        "#
    ));
}

/// A process says on its own output, and in INFO, which memory nodes it has lost. Once a majority
/// is lost, clients get an error that names them instead of waiting.
#[test]
fn kv_lost_memory_silent() {
    run_script(
        r#"
        memories=127.0.0.1:7000,127.0.0.1:7001,127.0.0.1:7002
        memory() { mitra memory kv --processes 1 --listen 127.0.0.1:700$1 ${2:-} >>memory$1.log 2>&1 & eval "m$1=$!"; }
        said() { until_true grep -q "memory node $1" store.log; }
        info() { until_true sh -c "redis-cli -p 6401 info | tr -d '\r' | grep -qx '$1'"; }
        memory 0; memory 1; memory 2 "--data files"
        mitra kv serve --id 0 --processes 127.0.0.1:7101 --clients 127.0.0.1:6401 --memories $memories >>store.log 2>&1 & store=$!
        mitra kv put --timeout 100 --servers 127.0.0.1:6401 colour blue || wrong "no change"
        # Two memory nodes are enough for the change. The third may not be connected yet.
        info memories:3
        kill -9 $m1; said "127.0.0.1:7001 is lost; 2 of 3 are left$"; info lost_memories:1
        mitra kv put --timeout 100 --servers 127.0.0.1:6401 colour red || wrong "no change with two memory nodes"
        memory 1; said "127.0.0.1:7001 is refused, because it has lost its contents; 2 of 3 are left$"; info lost_memories:1
        # A client waits while a majority is lost.
        kill -9 $m2; said "127.0.0.1:7002 is lost; 1 of 3 are left, too few to answer clients$"; info lost_memories:2
        redis-cli -p 6401 get colour >get.log; grep "^CLUSTERDOWN memory nodes 127.0.0.1:7001, 127.0.0.1:7002 are lost" get.log || wrong "GET waits"
        redis-cli -p 6401 set colour green >set.log; grep "^CLUSTERDOWN" set.log || wrong "SET waits"
        mitra kv get --timeout 1 --servers 127.0.0.1:6401 colour 2>why.log; [ $? = 3 ] || wrong "another exit code than 3"
        grep "memory nodes 127.0.0.1:7001, 127.0.0.1:7002 are lost" why.log || wrong "mitra kv get does not say why"
        memory 2 "--data files"; said "127.0.0.1:7002 is back; 2 of 3 are left$"; info lost_memories:1
        [ "$(mitra kv get --timeout 100 --servers 127.0.0.1:6401 colour)" = red ] || wrong "another value than the last acknowledged"
        kill $store $m0 $m1 $m2
        "#,
    );
}

/// The lines that contain `part` or begin with `sleep`, from a block of commands on a page, without
/// prompts and comments.
fn example(page: &str, part: &str) -> String {
    let commands = page.lines().map(|line| line.trim_start_matches("$ ").trim());
    let lines: Vec<_> = commands.filter(|line| line.contains(part) && !line.contains('`')).collect();
    lines.iter().map(|line| line.split("  # ").next().unwrap_or(line).trim()).collect::<Vec<_>>().join("\n")
}

/// The first example of the pages, pasted as it is. In place of `sleep 1`, the test waits until the
/// server listens, because a busy machine may need longer.
#[test]
fn docs_pingpong() {
    let help = mitra_test_process::output(
        mitra_test_process::command(env!("CARGO_BIN_EXE_mitra")).args(["run", "--help"]),
    );
    let help = String::from_utf8(help.stdout).expect("the help is UTF-8");
    for (page, text) in [
        ("README.md", include_str!("../../README.md")),
        ("docs/run.md", include_str!("../../docs/run.md")),
        ("mitra run --help", &help),
    ] {
        let pasted = example(text, "ibv_rc_pingpong");
        assert_eq!(pasted.lines().count(), 2, "the example of {page}: {pasted}");
        run_script(&format!(
            r#"
            sleep() {{ listens 18515; }}
            for i in 1 2 3; do
            {pasted}
            [ $? = 0 ] || wrong "the example of {page} fails"
            wait $! || wrong "the server in the example of {page} fails"
            done
            "#
        ));
    }
}

/// A planned move back to the preferred rail is not a failure of the rail that the connection
/// leaves. This holds at both ends.
#[test]
fn failback_cause() {
    for rails in ["--rails 2", "--rails 3"] {
        run_script(&format!(
            r#"
            cat >failback.py <<'END'
import json, sys
ends = [end["rails"] for end in json.load(sys.stdin)["processes"] if "rails" in end]
if len(ends) < 2 or any(rails[0]["failover"]["failbacks"] == 0 for rails in ends):
    sys.exit(1)
for rails in ends:
    print("failures of rail 1:", rails[1]["failover"]["detected"])
    if sum(rails[1]["failover"]["detected"].values()) > 0 or sum(rails[0]["failover"]["detected"].values()) != 1:
        sys.exit(2)
END
            mitra run --prefer 0 {rails} -- ib_write_bw -s 4096 -D 200 >server.log 2>&1 & server=$!
            listens 18515
            mitra run --prefer 0 {rails} --fault "rail0 down at 1s; rail0 up at 2s" -- \
                ib_write_bw -s 4096 -D 200 localhost >client.log 2>&1 & client=$!
            while :; do
                mitra watch --once --json >watch.log; python3 failback.py <watch.log
                case $? in 0) break;; 2) wrong "a failure of rail 1 is counted, or that of rail 0 is not";; esac
                kill -0 $server $client || wrong "a program has ended"
                sleep 0.1
            done
            for end in server client; do
                grep -q "from rail 1 to rail 0 (back to the preferred rail)" $end.log || wrong "$end does not say why it moved"
            done
            "#
        ));
    }
}

/// The port of a NIC is down while its interface is down, as with soft-RoCE.
#[test]
fn netif_down() {
    run_script(
        r#"
        ip link add r0 type veth peer name p0; ip link set p0 up; ip link set r0 up
        for address in 10.9.0.1 10.9.0.2; do ip address add $address/24 dev r0; done
        until_true sh -c "ip link show r0 | grep -q LOWER_UP"
        mitra run --rails 10.9.0.1 -- ibv_asyncwatch >events.log 2>&1 & watch=$!
        rail() { until_true sh -c "mitra watch --once | grep -q '^ *rail0 .* $1 '"; }
        port() { mitra run --rails 10.9.0.2 -- ibv_devinfo >port.log 2>&1; grep -q "state:[[:space:]]*$1 " port.log || wrong "the port is not $1"; }
        event() { until_true grep -q "$1" events.log; }
        rail up; port PORT_ACTIVE
        ip link set r0 down; event IBV_EVENT_PORT_ERR; rail down; port PORT_DOWN
        ip link set r0 up; event IBV_EVENT_PORT_ACTIVE; rail up; port PORT_ACTIVE
        # The cable is pulled: the interface at the other end is down.
        ip link set p0 down; rail down; port PORT_DOWN
        ip link set p0 up; rail up; port PORT_ACTIVE
        # The address is gone. The second one replaces it as the primary address.
        sysctl -qw net.ipv4.conf.r0.promote_secondaries=1
        ip address del 10.9.0.1/24 dev r0; rail down
        ip address add 10.9.0.1/24 dev r0; rail up
        kill $watch
        "#,
    );
}

/// A peer whose program is stopped answers nothing, and a line says so.
#[test]
fn stopped_target() {
    run_script(
        r#"
        mitra run -- ib_write_bw -D 200 >server.log 2>&1 & server=$!
        listens 18515
        mitra run -- ib_write_bw -D 200 localhost >client.log 2>&1 & client=$!
        until [ "$(awk '{ print $14 + $15 }' /proc/$server/stat)" -gt 30 ]; do sleep 0.02; done
        kill -STOP $server
        wait $client && wrong "the client does not notice"
        grep -q "mitra: queue pair .* answered none of .*: the peer's program is stopped" client.log || wrong "no line says why"
        kill -KILL $server
        "#,
    );
}

/// A verbs program on a machine without the libraries of rdma-core.
#[test]
fn program_without_its_libraries() {
    run_script(
        r#"
        echo 'int missing;' | cc -shared -Wl,-soname,libibverbs.so.9 -o stub.so -x c - || wrong "no library"
        echo 'extern int missing; int main(void) { return missing; }' | cc -o program -x c - -x none ./stub.so || wrong "no program"
        mitra run -- ./program 2>run.log; [ $? = 127 ] || wrong "another exit code than the loader's"
        grep "needs the files libibverbs.so.1 and librdmacm.so.1 of rdma-core" run.log || wrong "no note"
        ! grep "is not linked with" run.log || wrong "it is linked"
        "#,
    );
}
