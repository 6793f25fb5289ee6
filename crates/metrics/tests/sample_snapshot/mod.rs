//! A snapshot with samples in every family.

use mitra_metrics::Snapshot;
use serde_json::json;

fn counts(failovers: u64) -> serde_json::Value {
    json!({
        "detected": {"completion": failovers, "device": 0, "heartbeat": 1, "peer": 0},
        "stayed": 11, "fenced": 12, "failovers": failovers, "failbacks": 13, "recovered": 14,
        "in_flight": 20, "executed": 7, "torn": 15, "ambiguous": 2, "replayed": 9, "failed": 16,
        "bytes_in_flight": 4096, "bytes_replayed": 1024,
    })
}

pub fn snapshot() -> Snapshot {
    let vqp = |number: u32, phase: &str| {
        json!({
            "vqp": number, "phase": phase, "active_rail": 1, "epoch": 3, "posted": 1000, "completed": 990,
            "rejected_messages": 4, "unpolled_ns": 1_500_000, "failover": counts(2),
        })
    };
    let buckets: Vec<u64> = (0..25).collect();
    let histogram =
        json!({"count": 300, "sum_ns": 1_234_567_891, "p50_ns": 1000, "p99_ns": null, "buckets": buckets});
    serde_json::from_value(json!({
        "rails": [
            {
                "address": "127.0.0.5", "device": "mlx5_0", "state": "up", "failover": counts(3),
                "counters": {
                    "rx_bytes": 1_000_000, "tx_bytes": 2_000_000, "packets_received": 10, "packets_sent": 20,
                    "retransmitted_packets": 1, "timeouts": 2, "drop_no_qp": 3, "drop_qkey": 0,
                    "fault_dropped": 5, "acks_sent": 6, "rx_icrc_bad": 0,
                },
            },
            {"address": "::1", "state": "failed", "failover": counts(0), "counters": {}},
        ],
        "queue_pairs": 4, "vqp_count": 3, "recovering": 1,
        // A vQP that was reset has the number of its replacement.
        "vqps": [vqp(17, "recovering"), vqp(18, "active"), vqp(17, "closed"), vqp(19, "closed")],
        "closed": {"NoRail": 1, "PeerClosed": 2},
        "events": [
            {"number": 1, "age_ns": 5, "vqp": 17, "event": "detected", "rail": 0, "cause": "device event"},
        ],
        "durations": {"fence": histogram, "decide": histogram, "total": histogram},
        "latency": histogram,
    }))
    .expect("the fields are those of a snapshot")
}
