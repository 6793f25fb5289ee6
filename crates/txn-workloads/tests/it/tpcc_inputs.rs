//! The inputs that terminals draw.

use std::collections::BTreeMap;

use mitra_prng::Prng;
use mitra_txn_workloads::tpcc::{Constants, CustomerBy, Input, Kind, NewOrder, Scale, Terminal};

use crate::SEED;

fn terminal(warehouses: u16) -> Terminal {
    let scale = Scale::full(warehouses).unwrap();
    Terminal::new(scale, Constants::new(SEED), 2.min(warehouses), 7, Prng::stream(SEED, "terminal"))
}

fn new_orders(warehouses: u16, decks: usize) -> Vec<NewOrder> {
    let mut terminal = terminal(warehouses);
    let inputs = (0..decks * 100).flat_map(|_| terminal.next(0));
    inputs
        .filter_map(|input| match input {
            Input::NewOrder(input) => Some(input),
            _ => None,
        })
        .collect()
}

/// Whether `count` of `total` is a share of `percent`, within five standard deviations.
fn is_share(count: usize, total: usize, percent: f64) -> bool {
    let (total, share) = (total as f64, percent / 100.0);
    (count as f64 - total * share).abs() <= 5.0 * (total * share * (1.0 - share)).sqrt()
}

#[test]
fn numbered_terminals_are_spread_and_draw_the_same_again() {
    let scale = Scale::full(3).unwrap();
    let inputs = |number, starts| {
        let mut terminal = Terminal::numbered(scale, SEED, number, starts);
        (0..100).flat_map(|_| terminal.next(0)).collect::<Vec<_>>()
    };
    // After one terminal at each warehouse, the next district has its turn, and after ten districts
    // the first one again.
    for (number, place) in [(0, (1, 1)), (2, (3, 1)), (3, (1, 2)), (29, (3, 10)), (30, (1, 1))] {
        let place_of = |input| match input {
            Input::StockLevel(input) => Some((input.warehouse, input.district)),
            _ => None,
        };
        assert_eq!(inputs(number, 0).into_iter().find_map(place_of), Some(place), "{number}");
    }
    assert_eq!(inputs(30, 0), inputs(30, 0));
    assert_ne!(inputs(30, 0), inputs(0, 0));
    assert_ne!(inputs(30, 0), inputs(30, 1));
}

#[test]
fn each_deck_has_exactly_the_mix() {
    let mut terminal = terminal(1);
    for deck in 0..20 {
        let mut counts: BTreeMap<Kind, usize> = BTreeMap::new();
        for _ in 0..100 {
            let transactions = terminal.next(deck);
            let kind = transactions[0].kind();
            assert!(transactions.iter().all(|input| input.kind() == kind));
            assert_eq!(transactions.len(), if kind == Kind::Delivery { 10 } else { 1 });
            *counts.entry(kind).or_default() += 1;
        }
        assert_eq!(counts.into_iter().collect::<Vec<_>>(), Kind::DECK);
    }
}

#[test]
fn one_percent_of_new_orders_name_an_unused_item_on_the_last_line_only() {
    let orders = new_orders(3, 200);
    let unused = orders.iter().filter(|order| order.items.last().unwrap().item == 100_001).count();
    assert!(is_share(unused, orders.len(), 1.0), "{unused} of {}", orders.len());
    for order in &orders {
        let (_, others) = order.items.split_last().unwrap();
        assert!(others.iter().all(|line| (1..=100_000).contains(&line.item)));
        assert!((5..=15).contains(&order.items.len()));
        assert!(order.items.iter().all(|line| (1..=10).contains(&line.quantity)));
        assert!((1..=3000).contains(&order.customer) && (1..=10).contains(&order.district));
        assert_eq!(order.warehouse, 2);
    }
}

#[test]
fn one_percent_of_lines_are_remote_and_none_with_one_warehouse() {
    let lines: Vec<u16> = new_orders(3, 200)
        .iter()
        .flat_map(|order| order.items.iter().map(|line| line.supply_warehouse))
        .collect();
    let of = |warehouse| lines.iter().filter(|&&supply| supply == warehouse).count();
    assert!(is_share(of(1) + of(3), lines.len(), 1.0), "{} of {}", of(1) + of(3), lines.len());
    assert!(of(1) > 0 && of(3) > 0 && of(1) + of(2) + of(3) == lines.len());
    assert!(new_orders(1, 50).iter().all(|order| order.items.iter().all(|line| line.supply_warehouse == 1)));
}

#[test]
fn payments_are_remote_by_15_percent_and_by_last_name_by_60() {
    let payments = |warehouses| {
        let mut terminal = terminal(warehouses);
        let inputs = (0..20_000).flat_map(move |_| terminal.next(0));
        inputs.filter_map(|input| match input {
            Input::Payment(payment) => Some(payment),
            _ => None,
        })
    };
    let all: Vec<_> = payments(3).collect();
    assert_eq!(all.len(), 8600);
    let remote = all.iter().filter(|payment| payment.customer_warehouse != 2).count();
    assert!(is_share(remote, all.len(), 15.0), "{remote}");
    let by_name = all.iter().filter(|payment| matches!(payment.customer, CustomerBy::Name(_))).count();
    assert!(is_share(by_name, all.len(), 60.0), "{by_name}");
    for payment in &all {
        assert!((1_00..=5000_00).contains(&payment.amount));
        let at_home = payment.customer_warehouse == payment.warehouse;
        assert!(!at_home || payment.customer_district == payment.district);
    }
    let mut single = payments(1).map(|payment| payment.customer_warehouse);
    assert!(single.all(|warehouse| warehouse == 1), "nothing is remote with one warehouse");
}

#[test]
fn other_inputs_are_in_their_ranges() {
    let mut terminal = terminal(2);
    for input in (0..5000).flat_map(|now| terminal.next(now)) {
        match input {
            Input::StockLevel(input) => {
                assert_eq!((input.warehouse, input.district), (2, 7), "the terminal's own district");
                assert!((10..=20).contains(&input.threshold));
            }
            Input::Delivery(input) => assert!((1..=10).contains(&input.carrier) && input.warehouse == 2),
            Input::OrderStatus(input) => assert!((1..=10).contains(&input.district) && input.warehouse == 2),
            _ => (),
        }
    }
}
