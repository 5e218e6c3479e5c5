package demo

import (
	"encoding/json"
	"testing"
)

// TestOrders holds the day against what the tutorial says of it.
func TestOrders(t *testing.T) {
	var yen, poor, odd int
	for n := 1; n <= orders; n++ {
		var o order
		switch err := json.Unmarshal(message(n).Body, &o); {
		case err != nil:
			odd++
		case o.Card == declined:
			poor++
		case o.Currency == "JPY":
			yen++
		}
	}
	if yen != refused || poor != noMoney || odd != broken {
		t.Errorf("%d orders in yen, %d declined, %d broken, want %d, %d and %d", yen, poor, odd, refused, noMoney, broken)
	}
}
