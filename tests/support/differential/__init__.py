"""The differential test: seeded random commands to a plain mongod and to Thermocline, answers compared."""
