-- One model per carrier, trained in the container, applied by another function to the same month's flights.
SET client_min_messages = warning;
SELECT count(*) AS statements FROM transship.import('flights:1.0', 'public');
RESET client_min_messages;
DROP TABLE IF EXISTS models;
CREATE TABLE models AS
SELECT carrier, count(*) AS flights, train_delay(distance, dep_delay, arr_delay) AS model
FROM flights WHERE arr_delay IS NOT NULL AND month <= 6 GROUP BY carrier;
SELECT m.carrier, m.flights AS trained_on, length(m.model) AS bytes, count(*) AS july,
       round(avg(abs(f.arr_delay - predict_delay(m.model, f.distance, f.dep_delay)))::numeric, 2) AS mean_error,
       round(avg(abs(f.arr_delay - f.dep_delay))::numeric, 2) AS without_model
FROM models m JOIN flights f USING (carrier)
WHERE f.month = 7 AND f.arr_delay IS NOT NULL
GROUP BY m.carrier, m.flights, m.model
ORDER BY m.carrier;
