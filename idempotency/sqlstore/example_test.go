package sqlstore_test

import (
	"context"
	"database/sql"
	"fmt"
	"log"
	"time"

	"github.com/redrive-go/redrive/brokers"
	"github.com/redrive-go/redrive/idempotency"
	"github.com/redrive-go/redrive/idempotency/sqlstore"
)

// Keys are in a table, and outlast the process.
func Example() {
	ctx := context.Background()
	db, err := sql.Open("sqlite", ":memory:") // or a file, or Postgres
	if err != nil {
		log.Fatal(err)
	}
	defer db.Close()
	db.SetMaxOpenConns(1) // each connection to :memory: has a database of its own

	store, err := sqlstore.New(db, sqlstore.SQLite, "")
	if err != nil {
		log.Fatal(err)
	}
	if err := store.CreateTable(ctx); err != nil {
		log.Fatal(err)
	}
	once, err := idempotency.Once(store, idempotency.Options{Retention: 7 * 24 * time.Hour, Redrive: -1})
	if err != nil {
		log.Fatal(err)
	}
	handler := once(func(_ context.Context, m *brokers.Message) error {
		fmt.Println("charged", m.ID)
		return nil
	})
	for range 2 {
		if err := handler(ctx, &brokers.Message{ID: "order-7", Topic: "orders"}); err != nil {
			log.Fatal(err)
		}
	}
	var done bool
	if err := db.QueryRow("select done from redrive_idempotency where key = 'orders:order-7'").Scan(&done); err != nil {
		log.Fatal(err)
	}
	fmt.Println("recorded:", done)
	// Output:
	// charged order-7
	// recorded: true
}

// The table may be made by migrations instead.
func ExampleStore_Schema() {
	db, err := sql.Open("sqlite", ":memory:")
	if err != nil {
		log.Fatal(err)
	}
	defer db.Close()
	store, err := sqlstore.New(db, sqlstore.Postgres, "shop.handled")
	if err != nil {
		log.Fatal(err)
	}
	fmt.Println(store.Schema())
	// Output:
	// create table if not exists shop.handled (
	// 	key text primary key,
	// 	token text not null,
	// 	fingerprint text not null,
	// 	done smallint not null, -- 0 while the handler runs, 1 after its success
	// 	ends bigint not null -- of the lease, or of the record: milliseconds since 1970
	// );
	// create index if not exists handled_ends on shop.handled (ends);
}
