-- TPC-C for `cargo xtask tpcc-postgres`: the tables of mitra_txn_workloads::tpcc without its index records, for which
-- PostgreSQL has indexes, and a function for each of the five transactions. The columns are in the order of the records'
-- keys and values. Amounts are in cents, rates in 1/10000, dates in microseconds since the Unix epoch.

CREATE TABLE item (
    i_id integer NOT NULL, i_im_id integer NOT NULL, i_name varchar(24) NOT NULL, i_price bigint NOT NULL, i_data varchar(50) NOT NULL
);

CREATE TABLE warehouse (
    w_id smallint NOT NULL, w_name varchar(10) NOT NULL, w_street_1 varchar(20) NOT NULL, w_street_2 varchar(20) NOT NULL,
    w_city varchar(20) NOT NULL, w_state varchar(2) NOT NULL, w_zip varchar(9) NOT NULL, w_tax smallint NOT NULL
);

-- Rows that nearly all transactions update have pages of their own, with room for the next versions.
CREATE TABLE warehouse_ytd (w_id smallint NOT NULL, w_ytd bigint NOT NULL) WITH (fillfactor = 10);

CREATE TABLE district (
    d_w_id smallint NOT NULL, d_id smallint NOT NULL, d_name varchar(10) NOT NULL, d_street_1 varchar(20) NOT NULL, d_street_2 varchar(20) NOT NULL,
    d_city varchar(20) NOT NULL, d_state varchar(2) NOT NULL, d_zip varchar(9) NOT NULL, d_tax smallint NOT NULL
);

CREATE TABLE district_ytd (d_w_id smallint NOT NULL, d_id smallint NOT NULL, d_ytd bigint NOT NULL) WITH (fillfactor = 10);

CREATE TABLE district_next_order (d_w_id smallint NOT NULL, d_id smallint NOT NULL, d_next_o_id integer NOT NULL) WITH (fillfactor = 10);

CREATE TABLE customer (
    c_w_id smallint NOT NULL, c_d_id smallint NOT NULL, c_id integer NOT NULL, c_first varchar(16) NOT NULL, c_middle varchar(2) NOT NULL,
    c_last varchar(16) NOT NULL, c_street_1 varchar(20) NOT NULL, c_street_2 varchar(20) NOT NULL, c_city varchar(20) NOT NULL,
    c_state varchar(2) NOT NULL, c_zip varchar(9) NOT NULL, c_phone varchar(16) NOT NULL, c_since bigint NOT NULL, c_credit varchar(2) NOT NULL,
    c_credit_lim bigint NOT NULL, c_discount smallint NOT NULL, c_balance bigint NOT NULL, c_ytd_payment bigint NOT NULL,
    c_payment_cnt integer NOT NULL, c_delivery_cnt integer NOT NULL, c_data varchar(500) NOT NULL
) WITH (fillfactor = 80);

CREATE TABLE history (
    h_c_w_id smallint NOT NULL, h_c_d_id smallint NOT NULL, h_c_id integer NOT NULL, h_w_id smallint NOT NULL, h_d_id smallint NOT NULL,
    h_date bigint NOT NULL, h_amount bigint NOT NULL, h_data varchar(24) NOT NULL
);

CREATE TABLE orders (
    o_w_id smallint NOT NULL, o_d_id smallint NOT NULL, o_id integer NOT NULL, o_c_id integer NOT NULL, o_entry_d bigint NOT NULL,
    o_carrier_id smallint, o_ol_cnt smallint NOT NULL, o_all_local smallint NOT NULL
) WITH (fillfactor = 80);

CREATE TABLE new_order (no_w_id smallint NOT NULL, no_d_id smallint NOT NULL, no_o_id integer NOT NULL);

CREATE TABLE order_line (
    ol_w_id smallint NOT NULL, ol_d_id smallint NOT NULL, ol_o_id integer NOT NULL, ol_number smallint NOT NULL, ol_i_id integer NOT NULL,
    ol_supply_w_id smallint NOT NULL, ol_delivery_d bigint, ol_quantity smallint NOT NULL, ol_amount bigint NOT NULL, ol_dist_info varchar(24) NOT NULL
) WITH (fillfactor = 80);

CREATE TABLE stock (
    s_w_id smallint NOT NULL, s_i_id integer NOT NULL, s_quantity smallint NOT NULL,
    s_dist_01 varchar(24) NOT NULL, s_dist_02 varchar(24) NOT NULL, s_dist_03 varchar(24) NOT NULL, s_dist_04 varchar(24) NOT NULL,
    s_dist_05 varchar(24) NOT NULL, s_dist_06 varchar(24) NOT NULL, s_dist_07 varchar(24) NOT NULL, s_dist_08 varchar(24) NOT NULL,
    s_dist_09 varchar(24) NOT NULL, s_dist_10 varchar(24) NOT NULL,
    s_ytd integer NOT NULL, s_order_cnt integer NOT NULL, s_remote_cnt integer NOT NULL, s_data varchar(50) NOT NULL
) WITH (fillfactor = 80);

-- AFTER THE LOAD

ALTER TABLE item ADD PRIMARY KEY (i_id);
ALTER TABLE warehouse ADD PRIMARY KEY (w_id);
ALTER TABLE warehouse_ytd ADD PRIMARY KEY (w_id);
ALTER TABLE district ADD PRIMARY KEY (d_w_id, d_id);
ALTER TABLE district_ytd ADD PRIMARY KEY (d_w_id, d_id);
ALTER TABLE district_next_order ADD PRIMARY KEY (d_w_id, d_id);
ALTER TABLE customer ADD PRIMARY KEY (c_w_id, c_d_id, c_id);
ALTER TABLE orders ADD PRIMARY KEY (o_w_id, o_d_id, o_id);
ALTER TABLE new_order ADD PRIMARY KEY (no_w_id, no_d_id, no_o_id);
ALTER TABLE order_line ADD PRIMARY KEY (ol_w_id, ol_d_id, ol_o_id, ol_number);
ALTER TABLE stock ADD PRIMARY KEY (s_w_id, s_i_id);
CREATE INDEX customer_by_name ON customer (c_w_id, c_d_id, c_last, c_first, c_id);
CREATE INDEX orders_by_customer ON orders (o_w_id, o_d_id, o_c_id, o_id);

-- Under READ COMMITTED, each statement has a snapshot of its own. So what must not change meanwhile is locked by an UPDATE
-- or by FOR UPDATE before it is used, and what must belong together is read by one statement. All transactions lock in one
-- order, so none waits for ever: New-Order locks the district and its stock rows in order of their keys; Payment the
-- warehouse, the district and the customer; Delivery the new order and the customer.

-- The middle customer with a last name (§2.5.2.2). No transaction changes a name.
CREATE FUNCTION customer_by_name(w smallint, d smallint, last varchar) RETURNS integer LANGUAGE plpgsql STABLE AS $$
DECLARE
    ids integer[];
BEGIN
    ids := ARRAY(SELECT c_id FROM customer WHERE c_w_id = w AND c_d_id = d AND c_last = last ORDER BY c_first, c_id);
    RETURN ids[(cardinality(ids) + 1) / 2];
END $$;

-- An item that does not exist rolls the transaction back, with SQLSTATE TC001.
CREATE FUNCTION new_order(
    w smallint, d smallint, c integer, item_ids integer[], supplies smallint[], quantities smallint[], entry bigint,
    OUT order_id integer, OUT last varchar, OUT credit varchar, OUT discount smallint, OUT warehouse_tax smallint, OUT district_tax smallint,
    OUT names varchar[], OUT stocks smallint[], OUT are_brands boolean[], OUT prices bigint[], OUT amounts bigint[], OUT total bigint
) LANGUAGE plpgsql AS $$
DECLARE
    dist_infos varchar[];
    lines CONSTANT integer := cardinality(item_ids);
    found_lines integer;
    round integer := 0;
    rounds integer := 1;
BEGIN
    SELECT w_tax, d_tax, c_last, c_credit, c_discount INTO STRICT warehouse_tax, district_tax, last, credit, discount
        FROM warehouse, district, customer
        WHERE w_id = w AND d_w_id = w AND d_id = d AND c_w_id = w AND c_d_id = d AND c_id = c;
    UPDATE district_next_order SET d_next_o_id = d_next_o_id + 1 WHERE d_w_id = w AND d_id = d RETURNING d_next_o_id - 1 INTO STRICT order_id;

    -- One UPDATE takes all lines from stock. An item that is ordered twice needs a second one.
    WHILE round < rounds LOOP
        round := round + 1;
        WITH line AS MATERIALIZED (
            SELECT number, item_id, supply, quantity, i_name, i_price, i_price * quantity AS amount, i_data LIKE '%ORIGINAL%' AS is_original,
                    row_number() OVER (PARTITION BY supply, item_id ORDER BY number) AS occurrence
                FROM unnest(item_ids, supplies, quantities) WITH ORDINALITY AS input (item_id, supply, quantity, number)
                JOIN item ON i_id = item_id
                ORDER BY supply, item_id, number
        ), taken AS (
            UPDATE stock SET
                s_quantity = s_quantity - quantity + CASE WHEN s_quantity >= quantity + 10 THEN 0 ELSE 91 END,
                s_ytd = s_ytd + quantity,
                s_order_cnt = s_order_cnt + 1,
                s_remote_cnt = s_remote_cnt + CASE WHEN supply = w THEN 0 ELSE 1 END
                FROM line
                WHERE s_w_id = supply AND s_i_id = item_id AND occurrence = round
                RETURNING number, s_quantity, is_original AND s_data LIKE '%ORIGINAL%' AS is_brand,
                    CASE d WHEN 1 THEN s_dist_01 WHEN 2 THEN s_dist_02 WHEN 3 THEN s_dist_03 WHEN 4 THEN s_dist_04 WHEN 5 THEN s_dist_05
                           WHEN 6 THEN s_dist_06 WHEN 7 THEN s_dist_07 WHEN 8 THEN s_dist_08 WHEN 9 THEN s_dist_09 ELSE s_dist_10 END AS dist_info
        ), shown AS (
            SELECT i_name, i_price, amount, coalesce(s_quantity, stocks[number]) AS quantity, coalesce(is_brand, are_brands[number]) AS is_brand,
                    coalesce(dist_info, dist_infos[number]) AS dist_info, occurrence
                FROM line LEFT JOIN taken USING (number) ORDER BY number
        )
        SELECT array_agg(i_name), array_agg(i_price), array_agg(amount), array_agg(quantity), array_agg(is_brand), array_agg(dist_info),
                sum(amount), count(*), max(occurrence)
            INTO names, prices, amounts, stocks, are_brands, dist_infos, total, found_lines, rounds
            FROM shown;
    END LOOP;
    IF found_lines < lines THEN
        RAISE EXCEPTION 'an item does not exist' USING ERRCODE = 'TC001';
    END IF;

    INSERT INTO orders VALUES (w, d, order_id, c, entry, NULL, lines, CASE WHEN w = ALL (supplies) THEN 1 ELSE 0 END);
    INSERT INTO new_order VALUES (w, d, order_id);
    INSERT INTO order_line
        SELECT w, d, order_id, number, item_id, supply, NULL, quantity, amount, dist_info
            FROM unnest(item_ids, supplies, quantities, amounts, dist_infos) WITH ORDINALITY
                AS line (item_id, supply, quantity, amount, dist_info, number);
    total := round(total::numeric * (10000 - discount) * (10000 + warehouse_tax + district_tax) / 100000000);
END $$;

-- The customer has an id, or else a last name.
CREATE FUNCTION payment(
    w_id_in smallint, d_id_in smallint, c_w_id_in smallint, c_d_id_in smallint, c_id_in integer, c_last_in varchar, amount bigint, date bigint,
    OUT w warehouse, OUT d district, OUT c customer
) LANGUAGE plpgsql AS $$
BEGIN
    c_id_in := coalesce(c_id_in, customer_by_name(c_w_id_in, c_d_id_in, c_last_in));
    SELECT * INTO STRICT w FROM warehouse WHERE w_id = w_id_in;
    SELECT * INTO STRICT d FROM district WHERE d_w_id = w_id_in AND d_id = d_id_in;
    UPDATE warehouse_ytd SET w_ytd = w_ytd + amount WHERE w_id = w_id_in;
    UPDATE district_ytd SET d_ytd = d_ytd + amount WHERE d_w_id = w_id_in AND d_id = d_id_in;
    UPDATE customer SET
        c_balance = c_balance - amount,
        c_ytd_payment = c_ytd_payment + amount,
        c_payment_cnt = c_payment_cnt + 1,
        c_data = CASE WHEN c_credit = 'BC' THEN
            left(concat_ws(' ', c_id, c_d_id, c_w_id, d_id_in, w_id_in, (amount / 100) || '.' || lpad((amount % 100)::text, 2, '0'), c_data), 500)
            ELSE c_data END
        WHERE c_w_id = c_w_id_in AND c_d_id = c_d_id_in AND c_id = c_id_in
        RETURNING * INTO STRICT c;
    INSERT INTO history VALUES
        (c_w_id_in, c_d_id_in, c_id_in, w_id_in, d_id_in, date, amount, w.w_name || '    ' || d.d_name);
END $$;

-- The customer has an id, or else a last name.
CREATE FUNCTION order_status(
    w smallint, d smallint, INOUT c integer, c_last_in varchar,
    OUT first varchar, OUT middle varchar, OUT last varchar, OUT balance bigint,
    OUT order_id integer, OUT entry bigint, OUT carrier smallint, OUT line_count smallint, OUT all_local smallint,
    OUT item_ids integer[], OUT supplies smallint[], OUT deliveries bigint[], OUT quantities smallint[], OUT amounts bigint[], OUT dist_infos varchar[]
) LANGUAGE plpgsql AS $$
BEGIN
    c := coalesce(c, customer_by_name(w, d, c_last_in));
    SELECT c_first, c_middle, c_last, c_balance, o_id, o_entry_d, o_carrier_id, o_ol_cnt, o_all_local, lines.*
        INTO STRICT first, middle, last, balance, order_id, entry, carrier, line_count, all_local,
            item_ids, supplies, deliveries, quantities, amounts, dist_infos
        FROM customer
        CROSS JOIN LATERAL (
            SELECT * FROM orders WHERE o_w_id = w AND o_d_id = d AND o_c_id = c ORDER BY o_id DESC LIMIT 1
        ) AS last_order
        CROSS JOIN LATERAL (
            SELECT array_agg(ol_i_id ORDER BY ol_number), array_agg(ol_supply_w_id ORDER BY ol_number), array_agg(ol_delivery_d ORDER BY ol_number),
                array_agg(ol_quantity ORDER BY ol_number), array_agg(ol_amount ORDER BY ol_number), array_agg(ol_dist_info ORDER BY ol_number)
                FROM order_line WHERE ol_w_id = w AND ol_d_id = d AND ol_o_id = o_id
        ) AS lines
        WHERE c_w_id = w AND c_d_id = d AND c_id = c;
END $$;

-- Delivery in one district. All results are null if it has no new order.
CREATE FUNCTION delivery(w smallint, d smallint, carrier smallint, date bigint, OUT order_id integer, OUT c integer, OUT amount bigint)
LANGUAGE plpgsql AS $$
BEGIN
    SELECT no_o_id INTO order_id FROM new_order WHERE no_w_id = w AND no_d_id = d ORDER BY no_o_id LIMIT 1 FOR UPDATE;
    IF NOT FOUND THEN
        RETURN;
    END IF;
    DELETE FROM new_order WHERE no_w_id = w AND no_d_id = d AND no_o_id = order_id;
    UPDATE orders SET o_carrier_id = carrier WHERE o_w_id = w AND o_d_id = d AND o_id = order_id RETURNING o_c_id INTO STRICT c;
    WITH delivered AS (
        UPDATE order_line SET ol_delivery_d = date WHERE ol_w_id = w AND ol_d_id = d AND ol_o_id = order_id RETURNING ol_amount
    )
    SELECT sum(ol_amount) INTO STRICT amount FROM delivered;
    UPDATE customer SET c_balance = c_balance + amount, c_delivery_cnt = c_delivery_cnt + 1 WHERE c_w_id = w AND c_d_id = d AND c_id = c;
END $$;

CREATE FUNCTION stock_level(w smallint, d smallint, threshold smallint) RETURNS bigint LANGUAGE plpgsql AS $$
BEGIN
    RETURN (
        WITH next AS MATERIALIZED (SELECT d_next_o_id FROM district_next_order WHERE d_w_id = w AND d_id = d)
        SELECT count(DISTINCT ol_i_id)
            FROM next
            JOIN order_line ON ol_w_id = w AND ol_d_id = d AND ol_o_id >= d_next_o_id - 20 AND ol_o_id < d_next_o_id
            JOIN stock ON s_w_id = w AND s_i_id = ol_i_id
            WHERE s_quantity < threshold
    );
END $$;
