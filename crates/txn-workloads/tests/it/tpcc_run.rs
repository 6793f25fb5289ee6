//! The transactions, on the model of a store.

use std::collections::{BTreeMap, BTreeSet};

use mitra_prng::Prng;
use mitra_txn::{Abort, Model, RecordKey};
use mitra_txn_workloads::tpcc::rows::{
    Credit, Customer, DistrictNextOrder, History, NewOrder as NewOrderRow, Order, OrderLine, Stock,
};
use mitra_txn_workloads::tpcc::{
    Constants, CustomerBy, Delivery, Input, LastName, NewOrder, OrderStatus, OrderedItem, Output, Payment,
    Sizes, StockLevel, Table, Terminal, check, keys,
};
use mitra_txn_workloads::{Corrupt, Program, Text, Value, replay};

use crate::{SEED, TENTH, TINY, loaded, scale};

fn run(store: &mut Model, input: Input) -> Result<Output, Abort> {
    store.run(async |tx| input.execute(tx).await).map(|output| output.expect("a store that is not corrupt"))
}

fn row<V: Value>(store: &Model, at: RecordKey) -> V {
    V::decode(&store.records()[&at]).unwrap()
}

fn new_order(items: &[(u32, u8)]) -> Input {
    let line = |&(item, quantity)| OrderedItem { item, supply_warehouse: 1, quantity };
    let items = items.iter().map(line).collect();
    Input::NewOrder(NewOrder { warehouse: 1, district: 1, customer: 3, items, entry: 77 })
}

fn delivery(district: u8) -> Input {
    Input::Delivery(Delivery { warehouse: 1, district, carrier: 4, date: 99 })
}

#[test]
fn two_thousand_transactions_keep_all_conditions_and_replay() {
    let scale = scale(2, TENTH);
    let mut store = loaded(scale);
    let mut again = store.clone();
    let mut terminals: Vec<Terminal> = (1..=2)
        .map(|warehouse| {
            let prng = Prng::stream(SEED, &format!("terminal {warehouse}"));
            Terminal::new(scale, Constants::new(SEED), warehouse, 3, prng)
        })
        .collect();
    let mut history: Vec<(Input, Output)> = Vec::new();
    let mut rolled_back = 0;
    for now in 0..2000 {
        for input in terminals[now % 2].next(now as u64) {
            match run(&mut store, input.clone()) {
                Ok(output) => history.push((input, output)),
                Err(Abort::RolledBack) => rolled_back += 1,
                Err(abort) => panic!("{input:?}: {abort}"),
            }
        }
    }
    let report = check(store.records(), &scale);
    assert_eq!(report.violations, []);
    // 900 New-Orders, of which a hundredth rolls back at random.
    assert!((1..=25).contains(&rolled_back), "{rolled_back}");
    assert_eq!(history.len() + rolled_back, 2000 + 80 * 9);
    let delivered = history.iter().filter(|(_, output)| matches!(output, Output::Delivery(Some(_)))).count();
    assert!(delivered > 700, "{delivered}");

    replay(&mut again, history.iter().map(|(input, output)| (input, output))).unwrap();
    assert_eq!(again, store);
}

#[test]
fn replay_names_the_first_transaction_that_differs() {
    let mut store = loaded(scale(1, TINY));
    let mut again = store.clone();
    let inputs = [new_order(&[(1, 1)]), new_order(&[(2, 1)]), delivery(1)];
    let mut history: Vec<_> =
        inputs.map(|input| (input.clone(), run(&mut store, input).unwrap())).into_iter().collect();
    history.swap(0, 1);
    let difference = replay(&mut again, history.iter().map(|(input, output)| (input, output))).unwrap_err();
    assert_eq!(difference.position, 0);
    assert!(difference.recorded.contains("order: 32") && difference.replayed.contains("order: 31"));

    let rolls_back = [(new_order(&[(101, 1)]), history[0].1.clone())];
    let difference =
        replay(&mut again, rolls_back.iter().map(|(input, output)| (input, output))).unwrap_err();
    assert_eq!(difference.replayed, "RolledBack");
}

#[test]
fn new_order_writes_the_order_its_lines_and_the_stock() {
    let mut store = loaded(scale(1, TINY));
    let before: Stock = row(&store, keys::stock(1, 5));
    let Ok(Output::NewOrder(result)) = run(&mut store, new_order(&[(5, 3), (6, 1), (5, 2)])) else {
        panic!("the order is committed")
    };
    assert_eq!(result.order, 31);
    let after: Stock = row(&store, keys::stock(1, 5));
    assert_eq!((after.ordered, after.order_count, after.remote_count), (5, 2, 0), "item 5 is ordered twice");
    assert_eq!(after.quantity, result.lines[2].stock);
    assert!(after.quantity == before.quantity - 5 || after.quantity > before.quantity);
    let order: Order = row(&store, keys::of_order(Table::Order, 1, 1, 31));
    assert_eq!(order, Order { customer: 3, entry: 77, carrier: None, lines: 3, all_local: true });
    let _: NewOrderRow = row(&store, keys::of_order(Table::NewOrder, 1, 1, 31));
    let line: OrderLine = row(&store, keys::order_line(1, 1, 31, 3));
    assert_eq!((line.item, line.quantity, line.amount), (5, 2, 2 * result.lines[0].price));
    assert_eq!(line.district_text, before.district_texts[0]);
    let next: DistrictNextOrder = row(&store, keys::of_district(Table::DistrictNextOrder, 1, 1));
    assert_eq!(next.order, 32);

    let by_id = OrderStatus { warehouse: 1, district: 1, customer: CustomerBy::Id(3) };
    let Ok(Output::OrderStatus(status)) = run(&mut store, Input::OrderStatus(by_id)) else { panic!() };
    assert_eq!((status.order_id, status.lines.len(), &status.lines[2]), (31, 3, &line));
}

#[test]
fn line_of_another_warehouse_is_counted_there_as_remote() {
    let mut store = loaded(scale(2, TINY));
    let line = |supply_warehouse| OrderedItem { item: 5, supply_warehouse, quantity: 2 };
    let (items, entry) = (vec![line(2), line(1)], 77);
    let order = NewOrder { warehouse: 1, district: 1, customer: 3, items, entry };
    run(&mut store, Input::NewOrder(order)).unwrap();
    let counts = |warehouse| {
        let stock: Stock = row(&store, keys::stock(warehouse, 5));
        (stock.ordered, stock.order_count, stock.remote_count)
    };
    assert_eq!((counts(1), counts(2)), ((2, 1, 0), (2, 1, 1)));
    let order: Order = row(&store, keys::of_order(Table::Order, 1, 1, 31));
    assert!(!order.all_local);
    let supply = |line| row::<OrderLine>(&store, keys::order_line(1, 1, 31, line)).supply_warehouse;
    assert_eq!([supply(1), supply(2)], [2, 1]);
}

#[test]
fn unused_item_rolls_the_order_back() {
    let mut store = loaded(scale(1, TINY));
    let before = store.clone();
    assert_eq!(run(&mut store, new_order(&[(5, 3), (101, 1)])), Err(Abort::RolledBack));
    assert_eq!(store, before);
}

#[test]
fn last_name_means_the_middle_customer_by_first_name() {
    // The 3,000 customers have 1,000 last names, so many customers share a name.
    let scale = scale(1, Sizes { items: 1, districts: 1, ..Sizes::TPCC });
    let mut store = loaded(scale);
    let mut by_name: BTreeMap<String, Vec<(String, u16)>> = BTreeMap::new();
    for id in 1..=3000 {
        let customer: Customer = row(&store, keys::of_customer(Table::Customer, 1, 1, id));
        by_name.entry(customer.last.to_string()).or_default().push((customer.first.to_string(), id));
    }
    assert_eq!(by_name.len(), 1000);
    let mut parities = BTreeSet::new();
    for name in (0..1000).filter_map(LastName::new) {
        let mut customers = by_name[&name.to_string()].clone();
        customers.sort();
        let count = customers.len();
        parities.insert(count % 2);
        // The row at n/2, rounded up, counted from 1.
        let middle = customers[count.div_ceil(2) - 1].1;
        let input = OrderStatus { warehouse: 1, district: 1, customer: CustomerBy::Name(name) };
        let Ok(Output::OrderStatus(status)) = run(&mut store, Input::OrderStatus(input)) else { panic!() };
        assert_eq!(status.customer_id, middle);
    }
    assert_eq!(parities.len(), 2, "names with even and with odd numbers of customers");
}

#[test]
fn payment_by_last_name_writes_history_and_the_data_of_bad_credit() {
    let mut store = loaded(scale(2, TINY));
    let of_customer = |id| keys::of_customer(Table::Customer, 2, 1, id);
    let bad = (1..=30).find(|&id| row::<Customer>(&store, of_customer(id)).credit == Credit::Bad);
    let bad = bad.expect("a customer with bad credit");
    let before: Customer = row(&store, of_customer(bad));
    let name = LastName::new(bad - 1).unwrap();
    let payment = Payment {
        warehouse: 1,
        district: 2,
        customer_warehouse: 2,
        customer_district: 1,
        customer: CustomerBy::Name(name),
        amount: 12_05,
        date: 5,
    };
    let Ok(Output::Payment(result)) = run(&mut store, Input::Payment(payment)) else { panic!() };
    let after: Customer = row(&store, of_customer(bad));
    assert_eq!((result.customer_id, &result.customer), (bad, &after));
    assert_eq!((after.balance, after.payments, after.payment_count), (-22_05, 22_05, 2));
    let data = format!("{bad} 1 2 2 1 12.05 {}", before.data);
    assert_eq!(after.data.as_str(), &data[..data.len().min(500)]);
    let history: History = row(&store, keys::history(2, 1, bad, 2));
    let data: Text<24> = Text::new(&format!("{}    {}", result.warehouse.name, result.district.name));
    assert_eq!(history, History { warehouse: 1, district: 2, date: 5, amount: 12_05, data });
}

#[test]
fn delivery_deletes_the_oldest_new_order_and_skips_a_district_without_one() {
    let scale = scale(1, TINY);
    let mut store = loaded(scale);
    let new_order_at = |order| keys::of_order(Table::NewOrder, 1, 2, order);
    for order in 22..=30 {
        assert!(store.records().contains_key(&new_order_at(order)));
        let Ok(Output::Delivery(Some(delivered))) = run(&mut store, delivery(2)) else { panic!() };
        assert_eq!(delivered.order, order);
        assert!(!store.records().contains_key(&new_order_at(order)));
        let row_of_order: Order = row(&store, keys::of_order(Table::Order, 1, 2, order));
        assert_eq!(row_of_order.carrier, Some(4));
        let line: OrderLine = row(&store, keys::order_line(1, 2, order, row_of_order.lines));
        assert_eq!(line.delivery, Some(99));
        let at = keys::of_customer(Table::Customer, 1, 2, delivered.customer);
        let customer: Customer = row(&store, at);
        assert_eq!((customer.balance, customer.delivery_count), (delivered.amount - 10_00, 1));
    }
    assert_eq!(run(&mut store, delivery(2)), Ok(Output::Delivery(None)));
    let report = check(store.records(), &scale);
    assert!(report.is_consistent(), "{:?}", report.violations);
    assert_eq!(report.without_new_orders, [(1, 2)]);
}

#[test]
fn stock_level_counts_distinct_items_of_the_last_twenty_orders() {
    let mut store = loaded(scale(1, TINY));
    for _ in 0..20 {
        run(&mut store, new_order(&[(1, 1), (2, 1), (1, 1)])).unwrap();
    }
    let quantity = |item| row::<Stock>(&store, keys::stock(1, item)).quantity;
    let (one, two) = (quantity(1), quantity(2));
    let mut low = |threshold| {
        run(&mut store, Input::StockLevel(StockLevel { warehouse: 1, district: 1, threshold }))
            .map(|output| if let Output::StockLevel(result) = output { result.low_stock } else { panic!() })
    };
    assert_eq!(low(0), Ok(0));
    assert_eq!(low(one.max(two) + 1), Ok(2));
    assert_eq!(low(one.max(two)), Ok(usize::from(one != two)));
}

#[test]
fn corrupt_record_is_named_and_nothing_is_written() {
    let mut store = loaded(scale(1, TINY));
    let at = keys::stock(1, 6);
    let order = new_order(&[(5, 3), (6, 1)]);
    store.load(at, vec![1, 2, 3]);
    let before = store.clone();
    let corrupt = store.run(async |tx| order.execute(tx).await).unwrap().unwrap_err();
    assert!(matches!(corrupt, Corrupt::Damaged(damaged, _) if damaged == at), "{corrupt:?}");
    assert_eq!(store, before);

    let unknown = Input::OrderStatus(OrderStatus { warehouse: 1, district: 1, customer: CustomerBy::Id(31) });
    let corrupt = store.run(async |tx| unknown.execute(tx).await).unwrap().unwrap_err();
    assert_eq!(corrupt, Corrupt::Missing(keys::of_customer(Table::Customer, 1, 1, 31)));
}
