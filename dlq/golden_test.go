package dlq_test

import (
	"fmt"
	"os"
	"reflect"
	"strings"
	"testing"

	"github.com/redrive-go/redrive/dlq"
	"github.com/redrive-go/redrive/internal/deadletter"
)

// What version 1 wrote is read by later versions, and what is written now by
// version 1: the file stays, and a format that grows gets another one.
func TestLettersOfVersion1(t *testing.T) {
	letter, stub, receipt := dlq.Full(), deadletter.Stub(dlq.Full()), dlq.FullReceipt()
	var b strings.Builder
	for _, m := range []any{letter.Encode(1 << 20), stub.Encode(1 << 20), receipt.Message()} {
		fmt.Fprintf(&b, "%q\n", m)
	}
	want, err := os.ReadFile("testdata/letters.v1.txt")
	if err != nil {
		t.Fatalf("%v; it would be\n%s", err, &b)
	}
	if b.String() != string(want) {
		t.Errorf("written\n%swant\n%s", &b, want)
	}
	if got, err := dlq.Decode(letter.Encode(1 << 20)); err != nil || !reflect.DeepEqual(got, letter) {
		t.Errorf("read %+v, %v, want %+v", got, err, letter)
	}
	if got, err := dlq.DecodeReceipt(receipt.Message()); err != nil || !reflect.DeepEqual(got, receipt) {
		t.Errorf("read %+v, %v, want %+v", got, err, receipt)
	}
}
