module github.com/redrive-go/redrive

go 1.26
