module github.com/oncegate/oncegate/clients/go

go 1.23
