module github.com/oncegate/oncegate-go

go 1.23
