package main

func Example() {
	main()
	// Unordered output:
	// charged A
	// charged B
	// dead letter {"id":"C","cents":0}: poison: there is nothing to charge
}
