"""The contracts of the algorithms: signature, meaning and source of each setting, checks; once for both backends."""
