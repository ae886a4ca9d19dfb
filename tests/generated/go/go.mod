module example.com/generated

go 1.19

require example.com/generated/oncegate v0.0.0

replace example.com/generated/oncegate => ./oncegate
