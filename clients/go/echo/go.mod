module github.com/oncegate/oncegate/clients/go/echo

go 1.25.0

require (
	github.com/labstack/echo/v4 v4.16.0
	github.com/oncegate/oncegate/clients/go v0.1.0
)
