package main

import (
	"bytes"
	"encoding/json"
	"flag"
	"fmt"
	"math/rand/v2"
	"os"
	"testing"
)

var update = flag.Bool("update", false, "write orders.jsonl anew")

// TestOrdersFile keeps orders.jsonl what the generator makes it.
func TestOrdersFile(t *testing.T) {
	want := generateOrders()
	if *update {
		if err := os.WriteFile("orders.jsonl", want, 0o644); err != nil {
			t.Fatal(err)
		}
		return
	}
	if !bytes.Equal(embedded, want) {
		t.Error("orders.jsonl differs from its generator: run 'go test ./examples/quickstart -run OrdersFile -update'")
	}
}

// generateOrders returns the built-in input: 1,000 lines, of which 5 are
// broken, 12 have a card that is declined, and 1 hits the bug of the handler.
func generateOrders() []byte {
	random := rand.New(rand.NewPCG(2026, 11))
	var out bytes.Buffer
	for n := 1; n <= 1000; n++ {
		o := randomOrder(random, n)
		switch {
		case n%83 == 0 && n%3 == 0:
			o.Card = "tok_declined_expired_card"
		case n%83 == 0:
			o.Card = "tok_declined_insufficient_funds"
		case n == 512:
			o.Coupon, o.Labels = "WELCOME10", nil
		}
		body, err := json.Marshal(o)
		if err != nil {
			panic(err)
		}
		out.Write(broken(n, o, body))
		out.WriteByte('\n')
	}
	return out.Bytes()
}

func randomOrder(random *rand.Rand, n int) order {
	pick := func(words ...string) string { return words[random.IntN(len(words))] }
	o := order{
		ID:       fmt.Sprintf("ord-%04d", n),
		Customer: fmt.Sprintf("cus-%05d", 10000+random.IntN(400)),
		Cents:    int64(495 + 100*random.IntN(180)),
		Currency: pick("EUR", "EUR", "EUR", "USD", "GBP"),
		Card:     fmt.Sprintf("tok_%s_%08x", pick("visa", "mastercard", "amex"), random.Uint32()),
		Labels:   map[string]string{"channel": pick("web", "web", "app", "store")},
	}
	if random.IntN(20) == 0 {
		o.Coupon = pick("WELCOME10", "SPRING5")
	}
	return o
}

// broken spoils five lines, each in its own way.
func broken(n int, o order, body []byte) []byte {
	switch n {
	case 137:
		return body[:61] // cut off
	case 288:
		return bytes.Replace(body, fmt.Appendf(nil, `"cents":%d`, o.Cents), fmt.Appendf(nil, `"cents":"%.2f"`, float64(o.Cents)/100), 1)
	case 451:
		return fmt.Appendf(nil, "%s;%s;%d;%s", o.ID, o.Customer, o.Cents, o.Currency)
	case 706:
		return fmt.Appendf(nil, "[%s]", body)
	case 863:
		return append(body, body...)
	}
	return body
}
