module github.com/oncegate/oncegate/clients/go/echo5

go 1.25.0

require (
	github.com/labstack/echo/v5 v5.4.4
	github.com/oncegate/oncegate/clients/go v0.1.0
)
