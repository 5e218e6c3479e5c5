package dlq

// What the tests of other packages' work on entries need.
var (
	Full        = full
	FullReceipt = fullReceipt
)
